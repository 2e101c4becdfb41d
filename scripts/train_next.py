"""Train the next built-in checkpoint, which reads sentences that people write.

python scripts/train_next.py --minutes 90 --out runs/next
"""

from training.train import main

if __name__ == "__main__":
    main()
