import json
import unittest
from pathlib import Path

from app import work
from event_host.testing import Outcome, call

EVENT = json.loads(Path(__file__).with_name("event.json").read_text())


class Hello(unittest.TestCase):
    def test_the_first_order_is_greeted(self):
        result = call(work, EVENT)
        self.assertEqual(result.outcome, Outcome("done"))
        self.assertEqual(result.state, {"orders/Ada": 1})
        [greeting] = result.emits
        self.assertEqual((greeting.type, greeting.subject), ("customer.greeted", "Ada"))
        self.assertEqual(greeting.json(), {"text": "Hello, Ada!"})

    def test_later_orders_are_only_counted(self):
        result = call(work, EVENT, state={"orders/Ada": 4})
        self.assertEqual((result.state, result.emits), ({"orders/Ada": 5}, []))

    def test_an_order_of_nobody_is_rejected(self):
        result = call(work, {**EVENT, "data": {"id": 8}})
        self.assertEqual(result.outcome, Outcome("reject", "the order names no customer"))
        self.assertEqual(result.state, {})


if __name__ == "__main__":
    unittest.main()
