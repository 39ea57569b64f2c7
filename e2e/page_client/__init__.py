"""The page client alone, in real tabs, against a small engine without Python that misbehaves on command."""
