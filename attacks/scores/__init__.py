"""How close a guess came: images, orders, and scores that tell two kinds apart. Imports no attack."""
