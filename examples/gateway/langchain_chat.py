"""LangChain: its own chat model for Claude."""

from langchain_anthropic import ChatAnthropic

model = ChatAnthropic(model_name="claude-haiku-4-5", max_tokens_to_sample=500)
for answer in model.batch([f"Explain knot number {number}." for number in range(10)]):
    print(answer.text)
