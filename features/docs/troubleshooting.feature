Feature: The page of messages quotes what the product says

  Scenario: Each message is one of the product, and has its four answers
    Then pages of messages have faults as follows
      | page of docs              | fault |
      | how-to/troubleshooting.md |       |

  Scenario: A message that the product does not print is found
    Then messages are found in the product as follows
      | message                                                     | found |
      | there is no ledger at … yet; claude-batch run creates it    | yes   |
      | the ledger … has no run …                                   | yes   |
      | yet; claude-batch run creates it … there is no ledger at    | no    |
      | there is no ledger at … any more                            | no    |
      | no API key: the variable … is unset                         | no    |
      | … at the …                                                  | no    |
      # The words of two messages are none.
      | there is no ledger at … has no run                          | no    |
      # A docstring is no message.
      | Turn every error of the block into one message              | no    |
