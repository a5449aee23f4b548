/** 200 answers at once. Through the gateway they come from one batch. */

import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic();

async function explain(number: number): Promise<Anthropic.Message> {
  return client.messages.create({
    model: "claude-haiku-4-5",
    max_tokens: 500,
    messages: [{ role: "user", content: `Explain knot number ${number}.` }],
  });
}

const numbers = Array.from({ length: 200 }, (_, index) => index);
for (const message of await Promise.all(numbers.map(explain))) {
  for (const block of message.content) {
    if (block.type === "text") console.log(block.text);
  }
}
