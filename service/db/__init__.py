"""The only package that speaks SQL: one module per aggregate, one writer per column.

Functions take a connection and leave the transaction to their caller. ``schema`` declares the
tables that the migrations build.
"""
