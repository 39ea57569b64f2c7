"""Tests of the chaos harness itself: each fault that it promises must really happen in the browser."""
