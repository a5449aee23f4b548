"""Doors for other people's code: whoever talks to Claude in their own way is batched unchanged.

`client` gives the SDK's own client, answered from batches: what pydantic-ai, instructor and every
other library on ``AsyncAnthropic`` can be given. `langchain` gives LangChain's ``ChatAnthropic``
over it, and needs the extra ``langchain``. Each is imported only by who asks for it.
"""
