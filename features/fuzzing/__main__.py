import sys

from fuzzing.play import main

sys.exit(main())
