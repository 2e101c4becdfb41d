"""Bodies of OpenAI's API, with vLLM's fields: read to requests, made from results. No HTTP."""
