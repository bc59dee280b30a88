# SPDX-License-Identifier: Apache-2.0
import unittest


def words(text):
    return text.lower().split()


class Words(unittest.TestCase):
    def test_splits(self):
        self.assertEqual(words("To be or"), ["to", "be", "or"])

    def test_empty(self):
        self.assertEqual(words("   "), [])
