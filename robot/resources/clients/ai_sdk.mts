/** Vercel's AI SDK as a client of the gateway. */

import { anthropic } from "@ai-sdk/anthropic";
import { generateText, jsonSchema, streamText, tool } from "ai";
import { MODEL, report, type Call } from "./client_calls.mts";

async function ask(call: Call) {
  const asked = {
    model: anthropic(MODEL),
    prompt: call.prompt,
    maxOutputTokens: 500,
    tools: Object.fromEntries(
      call.tools.map((each) => [
        each.name,
        tool({ description: each.description, inputSchema: jsonSchema(each.input_schema as any) }),
      ]),
    ),
  };
  if (!call.stream) {
    const { text, toolCalls } = await generateText(asked);
    return { text, tools: toolCalls.map(({ toolName, input }) => ({ name: toolName, input })) };
  }
  const failures: unknown[] = [];
  const streamed = streamText({ ...asked, onError: ({ error }) => void failures.push(error) });
  await streamed.consumeStream();
  if (failures.length) throw failures[0];
  const toolCalls = await streamed.toolCalls;
  return {
    text: await streamed.text,
    tools: toolCalls.map(({ toolName, input }) => ({ name: toolName, input })),
  };
}

await report("ai", ask);
