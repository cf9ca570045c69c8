"""The one front door of all servers: limits, a key, errors in JSON; and the chat requests that two of them read."""
