Feature: What an actor asks for reaches the API as it was written

  Scenario: Parameters that are known, and betas, pass unchanged and in silence
    Given an API whose model answers as it is told
    And a batch provider
    When an actor with these options asks once in a batch and once live
      """
      {"max_tokens": 5000, "stop_sequences": ["END", "\n\n"], "metadata": {"user_id": "é-1"},
       "thinking": {"type": "adaptive"}, "output_config": {"effort": "low"},
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
    And the warnings are
      | says                                                                |
      | actor tests/passing: `of_tomorrow` is no Messages parameter that is known here |
