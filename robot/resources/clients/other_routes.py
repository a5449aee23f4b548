"""The Python SDK's calls that are no messages: the gateway passes them to the API.

Prints one line of JSON for each.
"""

import json
import time

import anthropic

MODEL = "claude-haiku-4-5"

client = anthropic.Anthropic()
messages = [{"role": "user", "content": "Name a knot."}]

counted = client.messages.count_tokens(model=MODEL, messages=messages)
print(json.dumps({"tokens": counted.input_tokens}))

print(json.dumps({"models": [model.id for model in client.models.list()]}))

params = {"model": MODEL, "max_tokens": 100, "messages": messages}
batch = client.messages.batches.create(requests=[{"custom_id": "knot", "params": params}])
while batch.processing_status != "ended":
    time.sleep(0.2)
    batch = client.messages.batches.retrieve(batch.id)
for line in client.messages.batches.results(batch.id):
    text = line.result.message.content[0].text
    print(json.dumps({"custom_id": line.custom_id, "text": text, "url": batch.results_url}))
