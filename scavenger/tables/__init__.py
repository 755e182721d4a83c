"""Tables of measurements that people and other programs wrote as comma-separated text."""
