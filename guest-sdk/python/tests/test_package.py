"""The package brings the contract with it: a copy in the repository, which must not fall behind."""

import unittest
from pathlib import Path

import event_host

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "wit" / "handler.wit"


class Package(unittest.TestCase):
    @unittest.skipUnless(SOURCE.exists(), "the package stands outside of the repository")
    def test_the_copy_of_the_contract_is_current(self) -> None:
        copy = Path(event_host.__file__).parent / "wit" / "handler.wit"
        self.assertEqual(copy.read_text(), SOURCE.read_text(), f"copy {SOURCE} over {copy}")


if __name__ == "__main__":
    unittest.main()
