/** The calls of `client_calls.py`, for clients in TypeScript. */

import { Agent, setGlobalDispatcher } from "undici";

export const MODEL = "claude-haiku-4-5";

/** The client's own time-out in milliseconds, which is shorter than a batch takes; 0 is its default. */
export const TIMEOUT = 1000 * Number(process.env.CLIENT_TIMEOUT ?? "0");

// Node.js has time-outs of its own, 300 s without a byte.
if (TIMEOUT) setGlobalDispatcher(new Agent({ headersTimeout: TIMEOUT, bodyTimeout: TIMEOUT }));

export interface Tool {
  name: string;
  description: string;
  input_schema: { type: "object"; properties: Record<string, unknown>; required?: string[] };
}

export interface Call {
  name: string;
  prompt: string;
  stream: boolean;
  tools: Tool[];
}

export interface Answer {
  text: string;
  tools: { name: string; input: unknown }[];
}

const TOOLS: Tool[] = [
  {
    name: "look_up",
    description: "Look a harbour up.",
    input_schema: {
      type: "object",
      properties: { harbour: { type: "string", enum: ["Oban"] } },
      required: ["harbour"],
    },
  },
  {
    name: "tides",
    description: "Return today's tides.",
    input_schema: { type: "object", properties: {} },
  },
];

const KINDS = {
  answer: "",
  tools: "[[sandbox:tools:all]]",
  "late-error": "[[sandbox:errored:invalid_request_error]]",
};

function calls(client: string): Call[] {
  return ["json", "stream"].flatMap((how) =>
    Object.entries(KINDS).map(([what, directive]) => ({
      name: `${how} ${what}`,
      prompt: `${client} ${how} ${what} ${directive}`,
      stream: how === "stream",
      tools: what === "tools" ? TOOLS : [],
    })),
  );
}

/** Makes all calls of a client at once, and prints how each ended. */
export async function report(client: string, ask: (call: Call) => Promise<Answer>) {
  const attempt = async (call: Call) => {
    try {
      return { call: call.name, ...(await ask(call)) };
    } catch (error: any) {
      const status = error.status ?? error.statusCode ?? null;
      const message = String(error.message ?? JSON.stringify(error));
      return { call: call.name, error: error.constructor.name, status, message };
    }
  };
  for (const ended of await Promise.all(calls(client).map(attempt))) {
    console.log(JSON.stringify(ended));
  }
}
