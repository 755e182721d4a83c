"""Measured iterations on their way to the controller: recorded, spooled, sent in the background.

Training only appends to a queue. What could not be sent stays in the spool and is uploaded
later.
"""
