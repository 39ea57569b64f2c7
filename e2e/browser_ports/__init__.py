"""The browser's ports and the engine's JavaScript in a real Chromium, without the rooms above them."""
