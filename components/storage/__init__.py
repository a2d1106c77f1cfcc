"""Storage shared by the components: files in local folders and in object stores."""
