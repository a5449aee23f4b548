"""Integrations: batch existing code that calls Claude, without changing it.

`client` returns the SDK's own client, answered from batches. pydantic-ai, instructor and every
other library on ``AsyncAnthropic`` accepts it. `langchain` returns LangChain's ``ChatAnthropic``
over it, and needs the extra ``langchain``. Each module is imported only when it is used.
"""
