/** Vercel's AI SDK: ten answers at once. */

import { createAnthropic } from "@ai-sdk/anthropic";
import { generateText } from "ai";

// Its base URL ends with /v1, unlike that of Anthropic's own SDKs.
const anthropic = createAnthropic({ baseURL: `${process.env.ANTHROPIC_BASE_URL}/v1` });
const model = anthropic("claude-haiku-4-5");

const numbers = Array.from({ length: 10 }, (_, index) => index);
const answers = await Promise.all(
  numbers.map((number) => generateText({ model, prompt: `Explain knot number ${number}.` })),
);
for (const { text } of answers) console.log(text);
