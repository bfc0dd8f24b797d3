"""Local files that are whole or absent: written beside their place, flushed to disk, then renamed."""

import os
import tempfile
from typing import Any

from django.core.files.base import File
from django.core.files.storage import FileSystemStorage


class DurableFileSystemStorage(FileSystemStorage):
    """A killed process leaves no half-written file under a final name."""

    def _save(self, name: str, content: "File[Any]") -> str:
        target = self.path(name)
        folder = os.path.dirname(target)
        os.makedirs(folder, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".incoming-", dir=folder)
        try:
            with os.fdopen(handle, "wb") as out:
                for chunk in content.chunks():
                    out.write(chunk if isinstance(chunk, bytes) else chunk.encode())
                out.flush()
                os.fsync(out.fileno())
            if self.file_permissions_mode is not None:
                os.chmod(temporary, self.file_permissions_mode)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
        return name
