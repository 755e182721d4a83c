"""The HTTP edge: authenticate a request, validate it, call one function, answer in JSON.

Errors are answered as problems (RFC 9457). Routes never call the reconciler. They write rows and
wake it; the reconciler reads the rows in its next pass.
"""
