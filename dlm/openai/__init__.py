"""Bodies of OpenAI's API, and vLLM's: to requests, and from results. No HTTP."""
