"""An HTTP server in OpenAI's form around an engine."""
