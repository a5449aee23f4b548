/** @anthropic-ai/sdk as a client of the gateway. */

import Anthropic from "@anthropic-ai/sdk";
import { MODEL, TIMEOUT, report, type Call } from "./client_calls.mts";

const client = new Anthropic(TIMEOUT ? { timeout: TIMEOUT } : {});

async function ask(call: Call) {
  const params: Anthropic.MessageCreateParamsNonStreaming = {
    model: MODEL,
    max_tokens: 500,
    messages: [{ role: "user", content: call.prompt }],
    ...(call.tools.length ? { tools: call.tools } : {}),
  };
  const message = call.stream
    ? await client.messages.stream(params).finalMessage()
    : await client.messages.create(params);
  const blocks = message.content;
  return {
    text: blocks.map((block) => (block.type === "text" ? block.text : "")).join(""),
    tools: blocks
      .filter((block) => block.type === "tool_use")
      .map(({ name, input }) => ({ name, input })),
  };
}

await report("@anthropic-ai/sdk", ask);
