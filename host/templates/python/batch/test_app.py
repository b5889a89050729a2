import json
import unittest
from pathlib import Path

from app import work
from event_host.testing import Outcome, call_batch

EVENT = json.loads(Path(__file__).with_name("event.json").read_text())


class Orders(unittest.TestCase):
    def test_orders_are_counted_together(self):
        result = call_batch(work, [EVENT, EVENT], state={"orders": 4})
        self.assertEqual(result.outcomes, [Outcome("done"), Outcome("done")])
        self.assertEqual(result.state, {"orders": 6})
        [counted] = result.emits
        self.assertEqual(counted.type, "orders.counted")
        self.assertEqual(counted.json(), {"orders": 2, "total": 6})

    def test_an_order_of_nobody_is_rejected_and_nothing_is_counted(self):
        result = call_batch(work, [EVENT, {**EVENT, "data": {"id": 8}}])
        self.assertEqual(result.outcomes, [Outcome("done"), Outcome("reject", "the order names no customer")])
        self.assertEqual((result.state, result.emits), ({}, []))


if __name__ == "__main__":
    unittest.main()
