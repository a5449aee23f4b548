/** Vercel's AI SDK: ten answers at once. */

import { anthropic } from "@ai-sdk/anthropic";
import { generateText } from "ai";

const model = anthropic("claude-haiku-4-5");

const numbers = Array.from({ length: 10 }, (_, index) => index);
const answers = await Promise.all(
  numbers.map((number) => generateText({ model, prompt: `Explain knot number ${number}.` })),
);
for (const { text } of answers) console.log(text);
