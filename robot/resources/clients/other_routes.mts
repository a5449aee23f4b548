/** The same as `other_routes.py`, with @anthropic-ai/sdk. */

import Anthropic from "@anthropic-ai/sdk";
import { setTimeout } from "node:timers/promises";
import { MODEL } from "./client_calls.mts";

const client = new Anthropic();
const messages: Anthropic.MessageParam[] = [{ role: "user", content: "Name a knot." }];
const print = (value: object) => console.log(JSON.stringify(value));

const counted = await client.messages.countTokens({ model: MODEL, messages });
print({ tokens: counted.input_tokens });

const models: string[] = [];
for await (const model of client.models.list()) models.push(model.id);
print({ models });

const params = { model: MODEL, max_tokens: 100, messages };
let batch = await client.messages.batches.create({ requests: [{ custom_id: "knot", params }] });
while (batch.processing_status !== "ended") {
  await setTimeout(200);
  batch = await client.messages.batches.retrieve(batch.id);
}
for await (const line of await client.messages.batches.results(batch.id)) {
  if (line.result.type !== "succeeded") throw new Error(line.result.type);
  const [block] = line.result.message.content;
  const text = block.type === "text" ? block.text : "";
  print({ custom_id: line.custom_id, text, url: batch.results_url });
}
