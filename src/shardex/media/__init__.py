"""Bytes of images as arrays, and arrays as bytes of images.

In: encoded files (JPEG, PNG, WebP, ...) as bytes, paths, PIL images or arrays. Out: bytes to store, arrays of pixels
(height, width, channels), what a header says. This room knows nothing of features, rows or datasets: `schema` decides
what a field is, and `dataset` when it is decoded.

simplejpeg and Pillow (the extra `images`) are imported when they are first used.

- `images`: encodes, decodes and describes one image
- `image_files`: recognises the formats of image files and reads their headers; opens them with Pillow
"""

from shardex.media.image_files import MAX_PIXELS, ImageInfo, image_info
from shardex.media.images import decode_image, encode_image

__all__ = ["MAX_PIXELS", "ImageInfo", "decode_image", "encode_image", "image_info"]
