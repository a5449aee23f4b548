Feature: What an actor asks for reaches the API as it was written

  Scenario: Parameters that are known, and betas, pass unchanged and in silence
    Given an API whose model answers as it is told
    And a batch provider
    When an actor with these options asks once in a batch and once live
      """
      {"max_tokens": 5000, "stop_sequences": ["END", "\n\n"], "metadata": {"user_id": "é-1"},
       "thinking": {"type": "enabled", "budget_tokens": 1024}, "output_config": {"effort": "low"},
       "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
                 {"type": "mcp_toolset", "mcp_server_name": "kb"}],
       "mcp_servers": [{"type": "url", "url": "https://kb.example/sse", "name": "kb"}],
       "container": {"skills": [{"type": "anthropic", "skill_id": "xlsx", "version": "latest"}]},
       "service_tier": "auto", "inference_geo": "us",
       "betas": ["mcp-client-2025-11-20", "skills-2025-10-02"]}
      """
    Then the API has received each option as it was written, and the betas as a header
    And nobody was warned

  Scenario: A parameter that nobody here knows passes with one warning
    Given an API whose model answers as it is told
    And a batch provider
    When an actor with these options asks once in a batch and once live
      """
      {"of_tomorrow": {"a": [1, 2]}}
      """
    Then the request was sent as it was written, and the API had the last word
    And one warning says "actor tests/passing: `of_tomorrow` is not a known parameter of the Messages API"

  Scenario: The same in a request's own params, with code execution and the longest output
    Given an API whose model answers as it is told
    And a batch provider
    When a request with these params asks once in a batch
      """
      {"model": "claude-opus-4-6", "max_tokens": 200000,
       "messages": [{"role": "user", "content": [{"type": "container_upload", "file_id": "file_1"},
                                                  {"type": "text", "text": "count"}]}],
       "tools": [{"type": "code_execution_20250825", "name": "code_execution"},
                 {"type": "web_search_20250305", "name": "web_search", "allowed_domains": ["a.example"]}],
       "thinking": {"type": "enabled", "budget_tokens": 2048}, "stop_sequences": ["END"],
       "metadata": {"user_id": "é-1"}, "output_config": {"effort": "max"},
       "mcp_servers": [{"type": "url", "url": "https://kb.example/sse", "name": "kb",
                        "authorization_token": "t"}],
       "container": "container_1", "context_management": {"edits": []},
       "betas": ["output-300k-2026-03-24", "code-execution-2025-08-25"]}
      """
    Then the API has received these params as they were written, and their betas as a header
    And nobody was warned

  Scenario Outline: With <settings> nothing else is changed or dropped
    Given an API whose model answers as it is told
    And a batch provider with <settings>
    When a request with these params asks once in a batch
      """
      {"model": "claude-haiku-5-5", "max_tokens": 10, "messages": [{"role": "user", "content": "x"}],
       "thinking": {"type": "adaptive"}, "metadata": {"user_id": "u"}, "betas": ["skills-2025-10-02"],
       "container": {"skills": []}}
      """
    Then the API has received these params as they were written, and their betas as a header
    And nobody was warned

    Examples:
      | settings                                                     |
      | {"cache": "auto", "reuse": true, "dedupe": true}             |
      | {"cache": "auto", "prime": true, "preflight": true}          |
