#!/usr/bin/env python3
"""The text of scenarios/seed1_low_loss.json: short paragraphs, each on one of eight topics.

A paragraph begins with its topic's letter; each further letter is one of two that may follow the one before in
this topic. Who sees the topic needs ln 2 = 0.69 a letter; who sees the last letter only, near ln 16 = 2.77: so a model
learns it only if attention brings the right sequence's first letter along.

    python3 tools/texts/make_topics.py > scenarios/topics.txt
"""
import random

LETTERS, TOPICS, PARAGRAPHS, LENGTH = "abcdefghijklmnop", "ABCDEFGH", 700, 30


def main():
    random.seed(5)
    follow = {(topic, letter): random.sample(LETTERS, 2) for topic in TOPICS for letter in LETTERS}
    paragraphs = []
    for _ in range(PARAGRAPHS):
        topic, letter = random.choice(TOPICS), random.choice(LETTERS)
        text = topic
        for _ in range(LENGTH):
            text += letter
            letter = random.choice(follow[topic, letter])
        paragraphs.append(text)
    print("\n\n".join(paragraphs))


if __name__ == "__main__":
    main()
