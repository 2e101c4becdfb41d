"""Tool calls, as models write them."""
