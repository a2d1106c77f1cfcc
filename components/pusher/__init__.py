"""The push: an executor for the stock Pusher that copies, verifies and renames."""
