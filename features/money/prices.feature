@every_python
Feature: What an answer costs follows from its usage, to the nano-dollar
  A nano-dollar is 10⁻⁹ USD; a dollar for a million tokens is 1,000 of them for each. All sums here
  were computed by hand from Anthropic's list of prices.

  Scenario: claude-haiku-4-5 costs $1 in and $5 out; reads 0.1, writes 1.25 and 2 times the input
    Then answers cost as follows
      | what                        | model                     | usage                                                                                              | batch    | live     |
      | plain tokens                | claude-haiku-4-5          | {"input_tokens": 1000, "output_tokens": 200}                                                       | 1000000  | 2000000  |
      | the same by its full name   | claude-haiku-4-5-20251001 | {"input_tokens": 1000, "output_tokens": 200}                                                       | 1000000  | 2000000  |
      | a mix of reads and writes   | claude-haiku-4-5          | {"input_tokens": 1000, "output_tokens": 200, "cache_read": 4000, "cache_5m": 300, "cache_1h": 500} | 1887500  | 3775000  |
      | web searches have no rebate | claude-haiku-4-5          | {"input_tokens": 100, "output_tokens": 100, "web_search_requests": 3}                              | 30300000 | 30600000 |
      | inference in the US         | claude-haiku-4-5          | {"input_tokens": 100, "output_tokens": 100, "web_search_requests": 3, "inference_geo": "us"}       | 30330000 | 30660000 |
      | inference anywhere          | claude-haiku-4-5          | {"input_tokens": 100, "output_tokens": 100, "inference_geo": "global"}                             | 300000   | 600000   |

  Scenario: Compaction is billed beside the other tokens
    Then answers of the API are billed for as follows
      | usage                                                                                                                                                                      | input | output | read | written |
      | {"input_tokens": 7, "output_tokens": 2, "iterations": [{"type": "message", "input_tokens": 7, "output_tokens": 2}]}                                                       | 7     | 2      | 0    | 0       |
      | {"input_tokens": 7, "output_tokens": 2, "iterations": [{"type": "compaction", "input_tokens": 100, "output_tokens": 10, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 3}]} | 107   | 12     | 5    | 3       |

  Scenario: Compaction and advisors are part of the cost, each at its own prices
    # claude-opus-5-5 costs $4 in and $20 out; in a batch half of all that.
    Then answers of the API cost as follows
      | what                      | usage                                                                                                                                                                                     | batch    |
      | without                   | {"input_tokens": 1000, "output_tokens": 200}                                                                                                                                              | 1000000  |
      | the turn itself           | {"input_tokens": 1000, "output_tokens": 200, "iterations": [{"type": "message", "input_tokens": 1000, "output_tokens": 200}]}                                                            | 1000000  |
      | compaction, cached for 1h | {"input_tokens": 1000, "output_tokens": 200, "iterations": [{"type": "compaction", "input_tokens": 100, "cache_creation_input_tokens": 500, "cache_creation": {"ephemeral_1h_input_tokens": 500}}]} | 1550000  |
      | an advisor                | {"input_tokens": 1000, "output_tokens": 200, "iterations": [{"type": "advisor_message", "model": "claude-opus-5-5", "input_tokens": 1000, "output_tokens": 500}]}                       | 8000000  |
      | two calls of it           | {"input_tokens": 1000, "output_tokens": 200, "iterations": [{"type": "advisor_message", "model": "claude-opus-5-5", "input_tokens": 1000}, {"type": "advisor_message", "model": "claude-opus-5-5", "output_tokens": 500}]} | 8000000  |
      | an advisor in the US      | {"input_tokens": 1000, "output_tokens": 200, "inference_geo": "us", "iterations": [{"type": "advisor_message", "model": "claude-opus-5-5", "input_tokens": 1000, "output_tokens": 500}]} | 8800000  |
      | an advisor without price  | {"input_tokens": 1000, "output_tokens": 200, "iterations": [{"type": "advisor_message", "model": "claude-nobody-9", "input_tokens": 1000}]}                                              | unpriced |
      | an advisor without a name | {"input_tokens": 1000, "output_tokens": 200, "iterations": [{"type": "advisor_message", "input_tokens": 1000}]}                                                                          | unpriced |
      | implausibly many tokens   | {"input_tokens": 1000, "output_tokens": 200, "iterations": [{"type": "advisor_message", "input_tokens": 1e8}, {"type": "advisor_message", "input_tokens": 1e8}]}                         | unread   |

  Scenario: The length of each prompt decides its price, not the sum of a turn and its compactions
    # A prompt of more than 100,000 tokens costs five times as much.
    Then answers of the API cost as follows
      | what                 | model            | usage                                                                                                                                                     | batch    |
      | both are short       | claude-haiku-5-5 | {"input_tokens": 45000, "output_tokens": 1000, "iterations": [{"type": "compaction", "input_tokens": 60000, "output_tokens": 1000}]}                      | 5750000  |
      | two compactions      | claude-haiku-5-5 | {"input_tokens": 45000, "output_tokens": 0, "iterations": [{"type": "compaction", "input_tokens": 60000}, {"type": "compaction", "input_tokens": 60000}]} | 8250000  |
      | a long compaction    | claude-haiku-5-5 | {"input_tokens": 45000, "output_tokens": 1000, "iterations": [{"type": "compaction", "input_tokens": 160000, "output_tokens": 1000}]}                     | 43750000 |
      | with cached tokens   | claude-haiku-5-5 | {"input_tokens": 45000, "output_tokens": 0, "iterations": [{"type": "compaction", "cache_read_input_tokens": 60000}]}                                     | 2550000  |
      | one rounding for all | claude-haiku-5-5 | {"input_tokens": 1, "output_tokens": 0, "iterations": [{"type": "compaction", "cache_creation_input_tokens": 1}]}                                         | 113      |

  Scenario: An answer that does not report both numbers of tokens has no price, and is not free
    Then answers of the API cost as follows
      | what            | usage                                             | batch    |
      | nothing         | {}                                                | unpriced |
      | null            | {"input_tokens": null, "output_tokens": null}     | unpriced |
      | other words     | {"prompt_tokens": 1000, "completion_tokens": 200} | unpriced |
      | only the output | {"output_tokens": 200}                            | unpriced |
      | only the input  | {"input_tokens": 1000, "output_tokens": null}     | unpriced |
      | no tokens       | {"input_tokens": 0, "output_tokens": 0}           | 0        |

  Scenario: claude-opus-5-5 costs $4 in and $20 out, and reads 0.05 times the input
    Then answers cost as follows
      | what                      | model           | usage                                                           | batch   | live    |
      | reads of their own price  | claude-opus-5-5 | {"input_tokens": 10, "output_tokens": 100, "cache_read": 10000} | 2020000 | 4040000 |
      | twice the price when fast | claude-opus-5-5 | {"input_tokens": 1000, "output_tokens": 10, "speed": "fast"}    | …       | 8400000 |

  Scenario: claude-haiku-5-5 costs $0.10 and $0.50, with prompts above 100,000 tokens five times that
    Then answers cost as follows
      | what                             | model            | usage                                                                         | batch    | live     |
      | a prompt as long as may be       | claude-haiku-5-5 | {"input_tokens": 100000, "output_tokens": 1000}                               | 5250000  | 10500000 |
      | cached tokens are of the prompt  | claude-haiku-5-5 | {"input_tokens": 60000, "cache_read": 40001, "output_tokens": 1000}           | 17250025 | 34500050 |
      | half a nano-dollar is rounded up | claude-haiku-5-5 | {"cache_5m": 1}                                                               | 63       | 125      |
      | and no factor before the sum     | claude-haiku-5-5 | {"input_tokens": 1, "output_tokens": 1, "cache_5m": 1, "inference_geo": "us"} | 399      | 798      |

  Scenario: Nothing known is not the same as nothing to pay
    Then answers cost as follows
      | what                       | model            | usage                                                          | batch    | live     |
      | a model without a price    | claude-nobody-9  | {"input_tokens": 1000, "output_tokens": 1000}                  | unpriced | unpriced |
      | a speed without a price    | claude-haiku-4-5 | {"input_tokens": 1000, "output_tokens": 1000, "speed": "fast"} | …        | unpriced |
      | no name                    |                  | {"input_tokens": 1000, "output_tokens": 1000}                  | unpriced | unpriced |
      | a name that begins alike   | claude-opus-4-10 | {"input_tokens": 1000, "output_tokens": 1000}                  | unpriced | unpriced |
      | a category without a price | claude-2         | {"cache_read": 1000}                                           | 400000   | 800000   |

  Scenario: All names of a model have its price
    Then answers cost as follows
      | model                    | usage                    | live    |
      | claude-sonnet-4-0        | {"input_tokens": 1000}   | 3000000 |
      | claude-sonnet-4-20250514 | {"input_tokens": 1000}   | 3000000 |
      | claude-4-sonnet          | {"input_tokens": 1000}   | 3000000 |
      | claude-3-5-haiku-latest  | {"input_tokens": 1000}   | 800000  |
      | claude-haiku-4.5         | {"input_tokens": 1000}   | 1000000 |

  Scenario: A price that has changed counts from its day on
    Then answers cost as follows
      | model           | usage                    | day        | live       |
      | claude-opus-4-6 | {"input_tokens": 300000} | 2026-03-12 | 3000000000 |
      | claude-opus-4-6 | {"input_tokens": 300000} | 2026-03-13 | 1500000000 |

  Scenario: A request reserves the price of the day on which it may be answered
    Then requests of 1,000 tokens, whose model becomes twice as dear on 2026-11-22, reserve as follows
      | sent on    | most    |
      | 2026-11-14 | 1000000 |
      | 2026-11-21 | 1000000 |
      | 2026-11-22 | 1000000 |

  Scenario: The saving of the prompt cache is reported, even if it is nothing
    Then answers cost as follows
      | model            | usage                                                                                              | batch without cache |
      | claude-haiku-4-5 | {"input_tokens": 1000, "output_tokens": 200, "cache_read": 4000, "cache_5m": 300, "cache_1h": 500} | 3400000             |
      | claude-haiku-4-5 | {"cache_5m": 1000}                                                                                 | 500000              |

  Scenario: A batch costs half of each token category, as the list of prices has it
    Then our prices equal those that genai-prices lists as follows
      | model             | batch | live |
      | claude-fable-5    | yes   | yes  |
      | claude-fable-5-1  | yes   | yes  |
      | claude-fable-5-2  | yes   | yes  |
      | claude-haiku-4-5  | yes   | yes  |
      | claude-haiku-5-5  | yes   | yes  |
      | claude-opus-4-5   | yes   | yes  |
      | claude-opus-4-6   | yes   | yes  |
      | claude-opus-4-7   | yes   | yes  |
      | claude-opus-4-8   | yes   | yes  |
      | claude-opus-5     | yes   | yes  |
      | claude-opus-5-5   | yes   | yes  |
      | claude-sonnet-4-5 | yes   | yes  |
      | claude-sonnet-4-6 | yes   | yes  |
      | claude-sonnet-5   | yes   | yes  |
      | claude-sonnet-5-5 | yes   | yes  |

  Scenario: Cache writes without a reported lifetime count as five minutes
    Then cache writes are counted as follows
      | usage                                                                                                                         | 5m | 1h |
      | {"input_tokens": 5, "output_tokens": 1, "cache_creation_input_tokens": 7}                                                     | 7  | 0  |
      | {"input_tokens": 5, "output_tokens": 1, "cache_creation_input_tokens": 7, "cache_creation": {"ephemeral_1h_input_tokens": 4}} | 3  | 4  |
      | {"input_tokens": 5, "output_tokens": 1, "cache_creation": {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 4}}   | 2  | 4  |

  Scenario: Prices are looked up once a model, and 20,000 answers cost a moment of CPU
    Then answers of one model are priced as follows
      | answers | cpu seconds below | looks for the price |
      | 20,000  | 0.5               | 1                   |

  Scenario: Only so many prices are remembered, and none of a name that no model can have
    Given a limit of 3 prices that are remembered
    Then prices of models are remembered as follows
      | models | letters in a name | remembered |
      | 2      | 20                | 2          |
      | 3      | 256               | 3          |
      | 9      | 20                | 3          |
      | 2      | 257               | 0          |

  Scenario: Nothing of it is loaded before the first answer
    Then the command line's help and the package itself load no prices

  Scenario: Own prices rank before all others
    Given a file of prices "prices.json"
      """
      {
      	"claude-haiku-4-5": {"input": 0.8, "output": 4},
      	"own-model": {
      		"input": 0.000002, "output": 30, "cache_read": 0.5, "cache_write_5m": 2,
      		"cache_write_1h": 3, "web_search": 5,
      		"above": {"1000": {"input": 1, "output": 60}, "2000": {"input": 10, "output": 70}}
      	}
      }
      """
    Then answers cost as follows
      | model                     | usage                                                                                             | batch    | live     |
      | claude-haiku-4-5          | {"input_tokens": 1000, "output_tokens": 100, "cache_read": 100, "cache_5m": 100, "cache_1h": 100} | 734000   | 1468000  |
      | claude-haiku-4-5-20251001 | {"input_tokens": 1000}                                                                            | 400000   | 800000   |
      | claude-haiku-5-4          | {"input_tokens": 1000}                                                                            | unpriced | unpriced |
      | claude-opus-5-5           | {"input_tokens": 1000}                                                                            | 2000000  | 4000000  |
      | own-model                 | {"input_tokens": 1000}                                                                            | 1        | 2        |
      | own-model                 | {"output_tokens": 1, "cache_read": 2, "cache_5m": 3, "cache_1h": 4}                               | 24500    | 49000    |
      | own-model                 | {"web_search_requests": 1}                                                                        | 5000000  | 5000000  |
      | own-model                 | {"input_tokens": 1001, "output_tokens": 1}                                                        | 530500   | 1061000  |
      | own-model                 | {"input_tokens": 2001}                                                                            | 10005000 | 20010000 |
      | own-model                 | {"speed": "fast"}                                                                                 | …        | unpriced |

  Scenario: Own prices as YAML, with remarks
    Given a file of prices "prices.yaml"
      """
      # what our contract says
      claude-haiku-4-5:
        input: 0.8   # dollars a million tokens
        output: 4
        above:
          1000: {input: 8, output: 40}
      """
    Then answers cost as follows
      | model            | usage                  | batch   | live    |
      | claude-haiku-4-5 | {"input_tokens": 1000} | 400000  | 800000  |
      | claude-haiku-4-5 | {"input_tokens": 1001} | 4004000 | 8008000 |

  Scenario: A file of prices that changes is read again
    Given a file of prices "prices.yaml"
      """
      a: {input: 1, output: 1}
      """
    Then answers cost as follows
      | model | usage                  | batch  | live    |
      | a     | {"input_tokens": 1000} | 500000 | 1000000 |
    Given a file of prices "prices.yaml"
      """
      a: {input: 20, output: 1}
      """
    Then answers cost as follows
      | model | usage                  | batch    | live     |
      | a     | {"input_tokens": 1000} | 10000000 | 20000000 |

  Scenario: A fault in the file is reported with its file and line
    Then files of prices are read as follows
      | name   | text                                                                                     | error                                                  |
      | p.yml  | ""                                                                                       | …p.yml: the file has no model                        |
      | p.yml  | "- a"                                                                                    | …p.yml:1: the file must be a mapping of names to prices              |
      | p.yml  | "a: 3"                                                                                   | …p.yml:1: `a` must be a mapping of names to prices                   |
      | p.yml  | "a: {output: 3}"                                                                         | …p.yml:1: a: `input` is missing                        |
      | p.yml  | "a:\n  input: 1\n  outptu: 3"                                                            | …p.yml:3: unknown key `outptu`; did you mean `output`? |
      | p.yml  | "a:\n  input: 1\n  xyz: 3"                                                               | …p.yml:3: unknown key `xyz`; the known keys are input           |
      | p.yml  | "a:\n  input: dear\n  output: 3"                                                         | …p.yml:2: a: input must be a number of dollars   |
      | p.yml  | "a:\n  input: -1\n  output: 3"                                                           | …p.yml:2: a: input must be a number of dollars   |
      | p.yml  | "a:\n  input: .inf\n  output: 3"                                                         | …p.yml:2: a: input must be a number of dollars   |
      | p.yml  | "a:\n  input: \"1\"\n  output: 3"                                                        | …p.yml:2: a: input must be a number of dollars   |
      | p.yml  | "a:\n  input: [1]\n  output: 3"                                                          | …p.yml:2: a: input must be a number of dollars   |
      | p.yml  | "a:\n  input: 0.0000001\n  output: 3"                                                    | …p.yml:2: a: input: at most six decimals are allowed               |
      | p.yml  | "a: {input: 1, output: 2}\nb: {}\na: {}"                                                 | …p.yml:2: b: `input` is missing                        |
      | p.yml  | "a: {input: 1, output: 2}\na: {}"                                                        | …p.yml:2: `a` is repeated                        |
      | p.yml  | "[a]: {input: 1, output: 2}"                                                             | …p.yml:1: the key must be a name                     |
      | p.yml  | "a: {input: 1, output: 2, above: {many: {}}}"                                            | …p.yml:1: a: above: 'many' is not a number of tokens      |
      | p.yml  | "a:\n  input: 1\n  output: 2\n  above:\n    9: {input: 1}"                               | …p.yml:5: a: above 9: `output` is missing              |
      | p.yml  | "a: {input: 1, output: 2, above: {9: {input: 1, output: 1}, 09: {input: 1, output: 1}}}" | …p.yml:1: a: above 09 is repeated                |
      | p.yml  | "a: {input: 1"                                                                           | …p.yml:1: invalid YAML                                      |
      | p.yml  | "a: \x00"                                                                                | …p.yml:1: invalid YAML: special characters are not allowed  |
      | p.json | "{\n  \"a\": 1\n  \"b\": 2}"                                                             | …p.json:3: invalid JSON                                     |
      | p.yml  | b"a: \xff"                                                                               | …p.yml: the prices are not UTF-8 text                        |

  Scenario: Each way of asking reports what was paid
    Given an API that bills what its prompts say
    Then an answer of the API is priced as follows
      | way     | model            | used                                         | cost    | cost_usd    |
      | batched | claude-haiku-4-5 | {"input_tokens": 1000, "output_tokens": 200} | 1000000 | 0.001000000 |
      | live    | claude-haiku-4-5 | {"input_tokens": 1000, "output_tokens": 200} | 2000000 | 0.002000000 |
      | batched | claude-nobody-9  | {"input_tokens": 1000}                       | nothing | nothing     |
      | live    | claude-nobody-9  | {"input_tokens": 1000}                       | nothing | nothing     |

  Scenario: Own prices count wherever they are named
    Given an API that bills what its prompts say
    And a file of prices "own.yaml"
      """
      claude-haiku-4-5: {input: 10, output: 0}
      """
    Then an answer of the API is priced as follows
      | own prices          | way     | model            | used                                       | cost     | cost_usd    |
      | as a keyword        | batched | claude-haiku-4-5 | {"input_tokens": 1000, "output_tokens": 5} | 5000000  | 0.005000000 |
      | as a keyword        | live    | claude-haiku-4-5 | {"input_tokens": 1000, "output_tokens": 5} | 10000000 | 0.010000000 |
      | CLAUDE_BATCH_PRICES | batched | claude-haiku-4-5 | {"input_tokens": 1000, "output_tokens": 6} | 5000000  | 0.005000000 |
      | CLAUDE_BATCH_PRICES | live    | claude-haiku-4-5 | {"input_tokens": 1000, "output_tokens": 6} | 10000000 | 0.010000000 |

  Scenario: Output lines have the cost of each answer in dollars
    Given an API that bills what its prompts say
    And a command's file "asks.jsonl"
      """
      "{\"input_tokens\": 1000, \"output_tokens\": 200}"
      "{\"input_tokens\": 1, \"output_tokens\": 0}"
      "[[sandbox:errored:invalid_request_error]]"
      """
    When a command runs: run --model claude-haiku-4-5 asks.jsonl -o out.jsonl
    Then the command line exits with 1
    And the output lines in "out.jsonl" say they cost 0.001000000, 0.000000500 and nothing
    When a command runs: run --model claude-nobody-9 asks.jsonl -o unknown.jsonl
    Then the output lines in "unknown.jsonl" say they cost nothing, nothing and nothing
    Given a file of prices "own.yaml"
      """
      claude-nobody-9: {input: 10, output: 0}
      """
    When a command runs: run --new --prices own.yaml --model claude-nobody-9 asks.jsonl -o own.jsonl
    Then the output lines in "own.jsonl" say they cost 0.005000000, 0.000005000 and nothing
    When a command runs: run --new --prices none.yaml --model claude-nobody-9 asks.jsonl -o own.jsonl
    Then the command line exits with 2 and says
      """
      error: none.yaml: the prices cannot be read: No such file or directory
      """
