/** @anthropic-ai/sdk reads finished messages as streams: each must equal the message itself. */

import { deepStrictEqual } from "node:assert";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic();

function params(name: string): Anthropic.MessageCreateParamsNonStreaming {
  return { model: "claude-haiku-4-5", max_tokens: 500, messages: [{ role: "user", content: name }] };
}

const HELPERS = {
  "beta.messages": (name: string) => client.beta.messages.stream(params(name)).finalMessage(),
  messages: (name: string) => client.messages.stream(params(name)).finalMessage(),
};

async function problem(read: (name: string) => Promise<{ parsed_output: unknown }>, name: string) {
  const body = JSON.stringify(params(name));
  const source = await fetch(`${client.baseURL}/v1/messages`, { method: "POST", body });
  try {
    // The helper adds what it parsed of structured output, and nothing was asked for.
    const { parsed_output, ...final } = await read(name);
    // JavaScript reads the source's numbers as doubles too.
    deepStrictEqual({ ...final, parsed_output }, { ...(await source.json()), parsed_output: null });
    return null;
  } catch (error: any) {
    return String(error.stack ?? error).slice(0, 2000);
  }
}

const names: Record<string, string> = await (await fetch(`${client.baseURL}/names`)).json();
for (const [helper, read] of Object.entries(HELPERS)) {
  for (const [name, api] of Object.entries(names)) {
    // `messages` does not know the blocks and deltas of the beta, from the API neither.
    if (helper === "messages" && api === "beta") continue;
    console.log(JSON.stringify({ helper, name, problem: await problem(read, name) }));
  }
}
