"""The Python SDK: one answer, and one as a stream."""

import anthropic

client = anthropic.Anthropic()

message = client.messages.create(
    model="claude-haiku-4-5",
    max_tokens=500,
    messages=[{"role": "user", "content": "Name three knots."}],
)
print(message.content[0].text)

with client.messages.stream(
    model="claude-haiku-4-5",
    max_tokens=32_000,
    messages=[{"role": "user", "content": "Explain the bowline."}],
) as stream:
    print(stream.get_final_text())
