"""The upload handler: bytes go to disk as they come and are counted on the way; too many stop the upload."""

from django.conf import settings
from django.core.files.uploadhandler import StopUpload, TemporaryFileUploadHandler

TOO_LARGE = "upload_too_large"  # set on the request, for the view to explain


class LimitedUploadHandler(TemporaryFileUploadHandler):
    """Streams to a temporary file and stops at UPLOAD_LIMIT_MB, whatever length the client announced."""

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        """Writes one chunk. Raises StopUpload past the limit."""
        if start + len(raw_data) > settings.UPLOAD_LIMIT_MB << 20:
            setattr(self.request, TOO_LARGE, True)
            raise StopUpload(connection_reset=False)
        super().receive_data_chunk(raw_data, start)
