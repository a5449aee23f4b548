"""LiteLLM: a completion that is asked again if it is aborted."""

import litellm

answer = litellm.completion(
    "anthropic/claude-haiku-4-5",
    messages=[{"role": "user", "content": "Name three knots."}],
    num_retries=2,
)
print(answer.choices[0].message.content)
