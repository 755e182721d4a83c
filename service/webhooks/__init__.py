"""Sends events of jobs to addresses that users chose, by the Standard Webhooks specification.

The API stores webhooks, the sender of each controller makes deliveries of events and tries them.
Nothing is sent inside a database session.
"""
