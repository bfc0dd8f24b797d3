"""Images in a zip, a folder per class: read one by one, nothing is ever unpacked to disk."""

import io
import re
import stat
import zipfile
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from audits.engine import wire
from audits.methods.contract import Array
from audits.methods.errors import RefusedArtifact, UnreadableArtifact

MAX_IMAGES = 200_000
MAX_ZIP_BYTES = 2 << 30
MAX_RATIO = 200  # unpacked to packed, of one member
MAX_PIXELS = 4096 * 4096


class _Picture(NamedTuple):
    label: str
    pixels: Array


_PICTURE = re.compile(r"\.(png|jpe?g|bmp|gif|webp|tiff?|ppm|pgm)$", re.IGNORECASE)


def read_pictures(archive: zipfile.ZipFile, members: Sequence[zipfile.ZipInfo]) -> tuple[dict[str, Array], list[str]]:
    """A zip of images in one folder per class: columns `image` and `label`."""
    chosen = [m for m in members if _PICTURE.search(m.filename) and not m.filename.startswith("__MACOSX")]
    if not chosen:
        raise UnreadableArtifact(
            "The zip holds no images. A data set in a zip is a folder per class with images in it; other data come as CSV, Parquet or NPZ."
        )
    _check_members(chosen)
    pictures = [_picture(archive, member) for member in chosen]
    shapes = {picture.pixels.shape for picture in pictures}
    if len(shapes) > 1:
        told = " and ".join(f"{s[2]}×{s[1]} ({s[0]} channels)" for s in sorted(shapes)[:2])
        raise UnreadableArtifact(
            f"The images differ in size or channels, for example {told}. Bring them all to one size first."
        )
    labels = np.array([picture.label for picture in pictures])
    warnings = [] if len(set(labels)) > 1 else ["All images lie in one class folder."]
    skipped = len(members) - len(chosen)
    if skipped:
        warnings.append(f"{skipped} files in the zip are not images and were left out.")
    return {"image": np.stack([p.pixels for p in pictures]), "label": labels}, warnings


def _check_members(members: Sequence[zipfile.ZipInfo]) -> None:
    """Refuses bombs, links and names that climb, before anything is unpacked."""
    if len(members) > MAX_IMAGES:
        raise UnreadableArtifact(f"The zip holds {len(members):,} images; at most {MAX_IMAGES:,} are read.")
    if (total := sum(member.file_size for member in members)) > MAX_ZIP_BYTES:
        raise UnreadableArtifact(f"The zip unpacks to {total:,} bytes; at most {MAX_ZIP_BYTES:,} are read.")
    for member in members:
        parts = member.filename.replace("\\", "/").split("/")
        if ".." in parts or member.filename.startswith(("/", "\\")) or ":" in parts[0]:
            raise RefusedArtifact(
                "The zip holds a name that leads outside its own folder. Such archives are made to attack."
            )
        if stat.S_ISLNK(member.external_attr >> 16):
            raise RefusedArtifact("The zip holds a symbolic link. Put the image itself in its place.")
        if member.file_size > MAX_RATIO * max(member.compress_size, 1) and member.file_size > 1 << 20:
            raise RefusedArtifact(
                "The zip holds a member that unpacks to far more than an image could. It looks like a zip bomb."
            )


def _picture(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> _Picture:
    from PIL import Image, UnidentifiedImageError

    Image.MAX_IMAGE_PIXELS = MAX_PIXELS
    parts = member.filename.replace("\\", "/").split("/")
    name = wire.printable(parts[-1])[:60]
    if len(parts) < 2:
        raise UnreadableArtifact(f"The image “{name}” lies in no folder; the folder's name is the class.")
    try:
        with Image.open(io.BytesIO(archive.read(member))) as image:
            if image.width * image.height > MAX_PIXELS:
                raise UnreadableArtifact(
                    f"The image “{name}” has {image.width}×{image.height} pixels; at most {MAX_PIXELS:,} are read."
                )
            plain = image.convert("L" if image.mode in ("1", "L", "I", "I;16") else "RGB")
            pixels = np.asarray(plain, np.uint8)
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UnreadableArtifact(f"The image “{name}” cannot be read: {wire.printable(str(error))[:120]}.") from None
    channels = pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
    return _Picture(wire.printable(parts[-2])[:100], channels)
