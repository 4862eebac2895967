import unittest

from app import count


class Count(unittest.TestCase):
    def test_counts_words_whatever_their_case(self):
        self.assertEqual(count("One two ONE"), [("one", 2), ("two", 1)])

    def test_nothing_has_no_words(self):
        self.assertEqual(count(""), [])


if __name__ == "__main__":
    unittest.main()
