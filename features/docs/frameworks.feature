@long
Feature: A framework's calls share a batch
  `docs/how-to/frameworks.md` shows these programs, and says how many batches each makes.

  Scenario Outline: 200 prompts of <framework> make one batch
    Given a reader with a key and a server
    And a command's environment lacks CLAUDE_BATCH_LINGER
    When the README's reader tries the example frameworks/<program>
    Then the README's reader has seen <count> lines like "<line>"
    And the API was called 1 times by POST /v1/messages/batches
    And the API has processed 200 requests, none twice

    Examples: installed with the tests
      | framework   | program               | count | line            |
      | pydantic-ai | pydantic_ai_agents.py | 200   | ^Sandbox answer |
      | LangChain   | langchain_batch.py    | 200   | ^Sandbox answer |

    @frameworks
    Examples: installed by `nox -s frameworks`
      | framework         | program                | count | line                  |
      | LangGraph         | langgraph_fan_out.py   | 200   | ^Sandbox answer       |
      | instructor        | instructor_models.py   | 200   | ^Sandbox answer       |
      | inspect-ai        | inspect_eval.py        | 1     | ^success 200 samples$ |
      | DSPy              | dspy_parallel.py       | 200   | ^A knot.$             |
      | litellm           | litellm_completions.py | 200   | ^Sandbox answer       |
      | OpenAI Agents SDK | openai_agents.py       | 200   | ^Sandbox answer       |

  Scenario: no framework is left out
    Then the programs of examples/frameworks are those that are run above, and litellm_batches.py
    And the page of frameworks shows each program, and as many batches as were counted
