Feature: The command line reads requests from files, and names each fault by its place

  Background:
    Given a command's folder

  Scenario: JSON lines hold texts and objects; without an id the line's number is the key
    Given a command's file "asks.jsonl"
      """
      "a text"
      {"prompt": "a prompt", "id": "mine"}

      {"messages": [{"role": "user", "content": "hi"}]}
      {"params": {"max_tokens": 9}, "id": 7}
      {"prompt": "keyed", "key": "k"}
      {"prompt": "unnamed", "id": null}
      """
    When the command line reads "asks.jsonl"
    Then the command line has read the requests
      | key  | request                             |
      | 1    | a text                              |
      | mine | a prompt                            |
      | 4    | [{"role": "user", "content": "hi"}] |
      | 7    | {"max_tokens": 9}                   |
      | k    | keyed                               |
      | 7    | unnamed                             |

  Scenario: A byte order mark and another extension for JSON lines are taken
    Given a command's file "ASKS.NDJSON" of the bytes b'\xef\xbb\xbf"first"\r\n"second"'
    When the command line reads "ASKS.NDJSON"
    Then the command line has read the requests
      | key | request |
      | 1   | first   |
      | 2   | second  |

  Scenario: Standard input is read as JSON lines
    When the command line reads "-" with {"stdin": "\"from a pipe\"\n"}
    Then the command line has read the requests
      | key | request     |
      | 1   | from a pipe |

  Scenario: Several inputs prefix the keys with the file
    Given a command's file "a.jsonl"
      """
      "of a"
      """
    And a command's file "b.csv"
      """
      prompt
      of b
      """
    When the command line reads "a.jsonl b.csv -" with {"stdin": "\"of stdin\""}
    Then the command line has read the requests
      | key       | request  |
      | a.jsonl:1 | of a     |
      | b.csv:2   | of b     |
      | <stdin>:1 | of stdin |

  Scenario: A CSV gives a request a row, keyed by its id or its first line
    Given a command's file "asks.csv"
      """
      id,prompt,other
      one,what?,x
      ,"two
      lines",x

      ,last,x
      """
    When the command line reads "asks.csv"
    Then the command line has read the requests
      | key | request    |
      | one | what?      |
      | 3   | two\nlines |
      | 6   | last       |

  Scenario: The prompts of a CSV may stand in a column of another name, behind a byte order mark
    Given a command's file "asks.csv" of the bytes b'\xef\xbb\xbfquestion,n\r\nwhy?,1\r\n'
    When the command line reads "asks.csv" with {"prompt_column": "question"}
    Then the command line has read the requests
      | key | request |
      | 2   | why?    |

  Scenario: The ids of a CSV may stand in a column of another name
    Given a command's file "asks.csv"
      """
      ticket,prompt,id
      T1,one,a
      ,two,b
      """
    When the command line reads "asks.csv" with {"id_column": "ticket"}
    Then the command line has read the requests
      | key | request |
      | T1  | one     |
      | 3   | two     |
    When the command line reads "asks.csv" with {"id_column": "tickets"}
    Then the command line refuses the input: asks.csv:1: there is no column 'tickets'; the columns are: ticket, prompt, id. Name one with --id-column

  Scenario: Globs are expanded in order, and a text file is one request named by its path
    Given a command's file "src/b.py"
      """
      b = 1
      """
    And a command's file "src/deep/a.py"
      """
      a = 1
      """
    And a command's folder named "src/no.py"
    When the command line reads "src/**/*.py"
    Then the command line has read the requests
      | key           | request |
      | src/b.py      | b = 1\n |
      | src/deep/a.py | a = 1\n |

  Scenario Outline: A text that holds requests is not sent as one prompt: <bytes>
    Given a command's file "<name>" of the bytes <bytes>
    When the command line reads "<name>"
    Then the command line refuses the input: <name>: it holds <form>, and would be sent as one prompt; <remedy>

    Examples: JSON lines
      | name        | bytes                                                        | form                   | remedy |
      | prompts.txt | b'{"id": "a", "prompt": "one"}\n{"prompt": "two"}'           | requests as JSON lines | give the file a name that ends with .jsonl, or pipe it to standard input (-). If it is one prompt, write it there as one JSON string |
      | prompts.txt | b'{"prompt": "one", "n": 1}\n{"prompt": "two"}\nThe end.'    | requests as JSON lines | give the file a name |
      | params.log  | b'\n{"params": {"max_tokens": 9}}\n'                         | requests as JSON lines | give the file a name |
      | prompts.txt | b'"one"\n"two"\n"three"\n'                                   | requests as JSON lines | give the file a name |
      | prompts.txt | b'"one"\r{"prompt": "two"}\r'                                | requests as JSON lines | give the file a name |
      | prompts.txt | b'{"prompt": "one"}\n\n"two"\n"three'                        | requests as JSON lines | give the file a name |
      | prompts.txt | b'{"prompt": "one"}\n{"prompt": "two",}\n'                   | requests as JSON lines | give the file a name |
      | prompts.txt | b'{"prompt": "one}\n{"prompt": "two"}\n'                     | requests as JSON lines | give the file a name |
      | prompts.txt | b'"one"\n"two\n"three"\n'                                    | requests as JSON lines | give the file a name |
      | prompts.txt | b'{\n"prompt": "one"\n}\n{\n"prompt": "two"\n}\n'            | requests as JSON lines | give the file a name |
      | batch.txt   | b'{"custom_id": "a", "params": {}}'                          | requests as JSON lines | give the file a name |
      | batch.txt   | b'{"custom_id": "a", "body": {}}\n{"custom_id": "b"}'        | requests as JSON lines | give the file a name |

    Examples: other lists
      | name         | bytes                                                                | form                             | remedy                         |
      | prompts.json | b'[{"prompt": "one"}, {"prompt": "two"}]'                            | a JSON array of requests         | write one request a line to a file that ends with .jsonl, or to standard input (-) |
      | prompts.json | b'["one", "two"]'                                                    | a JSON array of requests         | write one request a line       |
      | prompts.json | b'["one", {"prompt": "two"}]'                                        | a JSON array of requests         | write one request a line       |
      | prompts.json | b'[{"prompt": "one"}]'                                               | a JSON array of requests         | write one request a line       |
      | prompts.json | b'[\n{"prompt": "one"},\n{"prompt": "two"},\n]'                      | a JSON array of requests         | write one request a line       |
      | prompts.json | b'[{"prompt": "one"}, {"prompt": "two}]'                             | a JSON array of requests         | write one request a line       |
      | body.json    | b'{"requests": [{"custom_id": "a", "params": {"max_tokens": 9}}]}'   | a batch body of the Messages API | write each item of `requests` as a line {"id": …, "params": …} to a file that ends with .jsonl |

  Scenario Outline: A text that only looks like requests is a prompt: <bytes>
    Given a command's file "text.json" of the bytes <bytes>
    When the command line reads "text.json"
    Then the command line has read the requests
      | key       | request   |
      | text.json | <request> |

    Examples:
      | bytes                                | request                            |
      | b'{"prompt": "one", "rating": 5}'    | {"prompt": "one", "rating": 5}     |
      | b'{\n"prompt": "one"}'               | {\n"prompt": "one"}                |
      | b'{\n"prompt": "one",\n"a": "b",}'   | {\n"prompt": "one",\n"a": "b",}    |
      | b'{"prompt": "one"}\nWhat is this?'  | {"prompt": "one"}\nWhat is this?   |
      | b'{"requests": [{"url": "/a"}]}'     | {"requests": [{"url": "/a"}]}      |
      | b'{"requests": 5}'                   | {"requests": 5}                    |
      | b'[]'                                | []                                 |
      | b'[1]'                               | [1]                                |
      | b'["one"]'                           | ["one"]                            |
      | b'["one", 2]'                        | ["one", 2]                         |
      | b'["one", "two",]'                   | ["one", "two",]                    |
      | b'[{"prompt": p} for p in prompts]'  | [{"prompt": p} for p in prompts]   |
      | b'[{"prompt": "one"}, 5'             | [{"prompt": "one"}, 5              |
      | b'"A quotation."'                    | "A quotation."                     |
      | b'"Hello," he said.\n"Hi."\n"Ah."'   | "Hello," he said.\n"Hi."\n"Ah."    |
      | b'"To be."\n"Not to be."\nWho?'      | "To be."\n"Not to be."\nWho?       |
      | b'"""A module."""\nimport os'        | """A module."""\nimport os         |

  Scenario: A file whose name looks like a glob is that file
    Given a command's file "[odd].txt"
      """
      odd
      """
    When the command line reads "[odd].txt"
    Then the command line has read the requests
      | key       | request |
      | [odd].txt | odd\n   |

  Scenario Outline: A file whose name is no Unicode text cannot name a request: <inputs>
    Given a command's API
    And a command's file "plain.jsonl" of 1 prompts
    And a command's file "b\udcff.jsonl"
      """
      "two"
      """
    And a command's file "b\udcff.txt"
      """
      three
      """
    When a command runs: submit --model claude-haiku-4-5 <inputs>
    Then the command line exits with 2 and says
      """
      <words>
      """

    Examples:
      | inputs               | words                                                       |
      | b?.txt               | b\udcff.txt: request 'b\udcff.txt': this key has a lone surrogate  |
      | plain.jsonl b?.jsonl | b\udcff.jsonl:1: request 'b\udcff.jsonl:1': this key has a lone surrogate |

  Scenario: A lone surrogate in the id of a line is refused
    Given a command's file "asks.jsonl" of the bytes b'{"id": "a\\udc00b", "prompt": "x"}\n'
    When the command line reads "asks.jsonl"
    Then the command line refuses the input: asks.jsonl:1: not valid JSON

  Scenario Outline: A fault of a JSON line names file, line and what is wrong: <fault>
    Given a command's file "asks.jsonl"
      """
      "fine"

      <line>
      """
    When the command line reads "asks.jsonl"
    Then the command line refuses the input: asks.jsonl:3: <fault>
    And the command line refuses the input: use --skip-invalid to leave out such items

    Examples:
      | line                           | fault                                        |
      | {"prompt": "open               | not valid JSON                           |
      | Name a knot.                   | not valid JSON: JSON is malformed: invalid character (byte 0); write each line as a JSON string |
      | 12                             | request '3': a request must be a text             |
      | {"id": "x"}                    | request 'x': give exactly one of `prompt`    |
      | {"prompt": "a", "params": {}}  | give exactly one of             |
      | {"prompt": "a", "prompt": "b"} | the key 'prompt' is given twice; keep one |
      | {"prompt": "a", "prom\u0070t": "b"} | the key 'prompt' is given twice; keep one |
      | {"prompt": "a: b", "options": {"max_tokens": 9, "stop" : ["\":"], "max_tokens" : 5}} | the key 'max_tokens' is given twice; keep one |
      | {"prompt": "a", "promt": "b"}  | unknown key `promt`                          |
      | {"custom_id": "a", "params": {}} | this is a line of the Messages API's own batch format |
      | {"prompt": "a", "custom_id": "b"} | unknown key `custom_id`; the name of a request is its `id` here |
      | {"prompt": ""}                 | the prompt is empty             |
      | {"prompt": 5}                  | a prompt must be a text              |
      | {"prompt": "a", "id": ["x"]}   | a key must be a non-empty text               |
      | {"messages": []}               | `messages` is empty             |
      | {"prompt":"a","id":"b","key":"c"} | `id` and `key` mean the same              |

  Scenario: A line nested too deep is a fault of that line, not of the program
    Given a command's file "asks.jsonl" of the bytes b'[' * 100000
    When the command line reads "asks.jsonl" with {"skip_invalid": true}
    Then the command line has left out
      """
      asks.jsonl:1: not valid JSON
      """

  Scenario: Bytes that are not UTF-8 in JSON lines spoil one line only
    Given a command's file "asks.jsonl" of the bytes b'"a"\n"\xff"\n"c"\n'
    When the command line reads "asks.jsonl" with {"skip_invalid": true}
    Then the command line has read the requests
      | key | request |
      | 1   | a       |
      | 3   | c       |
    And the command line has left out
      """
      asks.jsonl:2: the line is not UTF-8 text; save the file as UTF-8
      """
    When the command line reads "asks.jsonl"
    Then the command line refuses the input: asks.jsonl:2: the line is not UTF-8 text; save the file as UTF-8

  Scenario: JSON lines that end with a carriage return only are refused as a whole
    Given a command's file "asks.jsonl" of the bytes b'{"prompt": "first"}\r{"prompt": "second"}\r'
    When the command line reads "asks.jsonl" with {"skip_invalid": true}
    Then the command line refuses the input: asks.jsonl: its lines end with a carriage return only; save the file with line feeds (LF or CRLF)

  Scenario Outline: JSON lines in UTF-16 are refused as a whole: <bytes>
    Given a command's file "asks.jsonl" of the bytes <bytes>
    When the command line reads "asks.jsonl" with {"skip_invalid": true}
    Then the command line refuses the input: asks.jsonl: is UTF-16, not UTF-8; save the file as UTF-8

    Examples:
      | bytes                                     |
      | b'\xff\xfe"\x00a\x00"\x00\n\x00'         |
      | b'\xfe\xff\x00"\x00a\x00"\x00\n'         |
      | b'"\x00a\x00"\x00\n\x00"\x00b\x00"\x00' |
      | b'\x00"\x00a\x00"\x00\n'                 |

  Scenario: skip_invalid reports each item that it leaves out
    Given a command's file "asks.jsonl"
      """
      oops
      "fine"
      []
      {"prompt": " "}
      """
    And a command's file "bad.txt" of the bytes b'\xff\xfe'
    And a command's file "asks.csv"
      """
      prompt,n
      good,1
      short
      """
    When the command line reads "asks.jsonl bad.txt asks.csv" with {"skip_invalid": true}
    Then the command line has read the requests
      | key          | request |
      | asks.jsonl:2 | fine    |
      | asks.csv:2   | good    |
    And the command line has left out
      """
      asks.jsonl:1: not valid JSON
      asks.jsonl:3: request 'asks.jsonl:3': a request must be a text
      asks.jsonl:4: the prompt is empty
      bad.txt: the file is not UTF-8 text
      asks.csv:3: 1 field, but the first line names 2 columns
      """

  Scenario: A TSV is read like a CSV, separated by tabs
    Given a command's file "asks.tsv" of the bytes b'id\tprompt\na\tone, two\nb\t"of\nlines"\n\tthree\n'
    When the command line reads "asks.tsv"
    Then the command line has read the requests
      | key | request  |
      | a   | one, two |
      | b   | of\nlines |
      | 5   | three    |
    Given a command's file "asks.tsv" of the bytes b'id,prompt\na,one\n'
    When the command line reads "asks.tsv"
    Then the command line refuses the input: asks.tsv:1: there is no column 'prompt'; the columns are: id,prompt. The fields seem to be separated by commas: save the file with tabs

  Scenario Outline: A CSV that cannot be read says where: <fault>
    Given a command's file "asks.csv" of the bytes <bytes>
    When the command line reads "asks.csv"
    Then the command line refuses the input: asks.csv:<fault>

    Examples:
      | bytes                             | fault                                                           |
      | b'question,n\nwhy,1\n'            | 1: there is no column 'prompt'; the columns are: question, n. Name one with --prompt-column |
      | b'id;prompt\na;b\n'               | 1: there is no column 'prompt'; the columns are: id;prompt. The fields seem to be separated by semicolons: save the file with commas |
      | b'id\tprompt\na\tb\n'             | 1: there is no column 'prompt'; the columns are: id	prompt. The fields seem to be separated by tabs: save the file with commas |
      | b'id\x7cprompt\na\x7cb\n'         | 1: there is no column 'prompt'; the columns are: id\|prompt. The fields seem to be separated by vertical bars: save the file with commas |
      | b'id, prompt\na, b\n'             | 1: there is no column 'prompt'; the columns are: id,  prompt. Remove the spaces around the column's name, ' prompt', and around its fields |
      | b'id, "prompt"\na, "b"\n'         | 1: there is no column 'prompt'; the columns are: id,  "prompt". Remove the spaces around the column's name, ' "prompt"', and around its fields |
      | b'p\x00r\x00o\x00m\x00p\x00t\x00'   | 1: is not UTF-8 text; save the file as UTF-8                    |
      | b''                               | 1: there is no column 'prompt'; the columns are: none                 |
      | b'pr\xff,prompt\na,b\n'            | 1: is not UTF-8 text                                            |
      | b'prompt\na\n"b\nc\nd\n'           | 3: the row has a quotation mark that is not closed. Close it; inside a quoted field, write a quotation mark twice |
      | b'prompt\n"a"b\n'                 | 2: ',' expected after '"'                                       |
      | b'prompt,prompt\na,b\n'           | 1: there are several columns 'prompt'; rename one               |
      | b'prompt\nfine\n\xff\n'           | 3: the row is not UTF-8 text; save the file as UTF-8; use --skip-invalid to leave out such items |

  Scenario: Bytes that are not UTF-8 in a CSV spoil one row only
    Given a command's file "asks.csv" of the bytes b'prompt\nfine\n\xff\n\xc3\xa9\n'
    When the command line reads "asks.csv" with {"skip_invalid": true}
    Then the command line has read the requests
      | key | request |
      | 2   | fine    |
      | 4   | é       |
    And the command line has left out
      """
      asks.csv:3: the row is not UTF-8 text
      """

  Scenario: A line break inside an unquoted field names the line
    Given a command's file "asks.csv" of the bytes b'prompt,n\nfine,1\n\xef\xbb\xbf"a"b\rc"\rd,2\n'
    When the command line reads "asks.csv" with {"skip_invalid": true}
    Then the command line has left out
      """
      asks.csv:3: 1 field
      asks.csv:4: 1 field
      """

  Scenario: A field longer than any prompt is refused by its line
    Given a command's file "asks.csv"
      """
      prompt
      far too long for the limit
      """
    And a limit of 10 characters in a field
    When the command line reads "asks.csv"
    Then the command line refuses the input: asks.csv:2: field larger than field limit

  Scenario: A line or a file that is too large is refused before the rest of it is read
    Given a command's file "asks.jsonl"
      """
      "short"
      "far too long for the limit"
      """
    And a limit of 10 bytes in a line
    When the command line reads "asks.jsonl"
    Then the command line refuses the input: asks.jsonl:2: the line has more than 10 bytes
    Given a limit of 1000 bytes in a text
    When the command line reads "/dev/zero"
    Then the command line refuses the input: /dev/zero: the file has more than 1,000 bytes, the most of a whole batch

  Scenario Outline: A text with NUL characters is no prompt: <bytes>
    Given a command's file "notes.txt" of the bytes <bytes>
    When the command line reads "notes.txt"
    Then the command line refuses the input: notes.txt: the file <fault>; save the file as UTF-8

    Examples:
      | bytes                        | fault                |
      | b'N\x00a\x00m\x00e\x00'      | is UTF-16, not UTF-8 |
      | b'\x00N\x00a\x00m\x00e'      | is UTF-16, not UTF-8 |
      | b'Name\x00a knot.'           | has NUL characters   |

  Scenario: Standard input that is named twice is refused, because it can be read only once
    When the command line reads "- -" with {"stdin": "\"from a pipe\""}
    Then the command line refuses the input: - is standard input, which can be read only once; name it once

  Scenario Outline: An input that is not there is refused before anything else: <input>
    Given a command's folder named "dir"
    When the command line reads "<input>"
    Then the command line refuses the input: <message>

    Examples:
      | input       | message                                                           |
      | nowhere.txt | nowhere.txt: no such file                                         |
      | none/*.py   | none/*.py: no file matches                                        |
      | dir         | dir is a folder; give files, or a pattern such as 'dir/*.pdf'    |

  Scenario: A file that may not be opened is named with the reason
    Given a command's file "asks.jsonl"
      """
      "a"
      """
    And a command's file "a.txt"
      """
      a
      """
    When the command line reads "asks.jsonl" and the file cannot be opened
    Then the command line refuses the input: asks.jsonl: cannot be read: Permission denied
    When the command line reads "a.txt" and the file cannot be opened
    Then the command line refuses the input: a.txt: cannot be read: Permission denied

  Scenario: An item's documents are relative to its file, and follow the common documents
    Given a command's file "in/asks.jsonl"
      """
      {"prompt": "of its own", "documents": ["a.txt", {"url": "https://e.example/b.pdf"}]}
      "of all"
      {"prompt": "cited", "documents": [{"path": "a.txt", "title": "A"}], "citations": true}
      """
    And a command's file "all/one.txt"
      """
      One.
      """
    And a command's file "all/two.txt"
      """
      Two.
      """
    When the command line reads "in/asks.jsonl" with {"documents": ["all/*.txt", "file_9"]}
    Then the command line has read the documents
      | key | documents                                                              | citations |
      | 1   | all/one.txt all/two.txt file_9 in/a.txt https://e.example/b.pdf        | False     |
      | 2   | all/one.txt all/two.txt file_9                                         | False     |
      | 3   | all/one.txt all/two.txt file_9 in/a.txt                                | True      |

  Scenario: A missing document is reported before anything is sent
    Given a command's file "asks.jsonl"
      """
      "a"
      """
    When the command line reads "asks.jsonl" with {"documents": ["none.pdf"]}
    Then the command line refuses the input: none.pdf: no such file
    When the command line reads "asks.jsonl" with {"citations": true}
    Then the command line refuses the input: asks.jsonl:1: request '1': `citations` need `documents`, but there are none
