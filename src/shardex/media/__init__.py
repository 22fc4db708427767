"""Bytes of images, audio and video as arrays, and arrays as bytes.

In: encoded files (JPEG, PNG, FLAC, MP4, ...) as bytes, paths, PIL images or arrays. Out: bytes to store, arrays (of an
image: height, width, channels; of audio: frames, channels; of a video: frames, height, width, channels), what a header
says. This room knows nothing of features, rows or datasets: `features` decides what a field is, `dataset` when it is
decoded.

simplejpeg and Pillow (the extra `images`), soundfile (`audio`) and PyAV (`video`) are imported when they are first
used.

- `images`: encodes, decodes and describes one image
- `image_files`: recognises the formats of image files and reads their headers; opens them with Pillow
- `image_steps`: resize, crop, flip, pad: which part of an image is shown, and how large
- `image_resize`: scales part of an image into a batch, with `_resize.c` or Pillow
- `image_batches`: decodes many images in threads, straight into one array
- `audio`: encodes, decodes and describes audio, with `resample`; `mpeg_audio` finds the length of MP3 files
- `video`: encodes, decodes and describes video; `video_track` finds frames by their numbers
- `clip_batches`: decodes many audio files or videos in threads
- `frame_choice`: which frames of a video, or which window of an audio, are decoded
- `decode_threads`: the threads in which batches are decoded
- `containers`: recognises the containers of audio and video, and files that were cut off
"""

from typing import NoReturn

from shardex.lazy_door import TYPES, import_later
from shardex.other_names import MEDIA, missing_name

__all__ = [
    "AudioInfo",
    "CenterCrop",
    "Flip",
    "ImageInfo",
    "ImageStep",
    "Pad",
    "RandomCrop",
    "RandomResizedCrop",
    "Resize",
    "VideoInfo",
    "audio_info",
    "decode_audio",
    "decode_audios",
    "decode_frames",
    "decode_image",
    "decode_images",
    "decode_videos",
    "encode_audio",
    "encode_image",
    "encode_video",
    "image_info",
    "video_info",
]

if TYPES:
    from shardex.media.audio import AudioInfo, audio_info, decode_audio, encode_audio
    from shardex.media.clip_batches import decode_audios, decode_videos
    from shardex.media.decode_threads import decode_threads as decode_threads
    from shardex.media.image_batches import decode_images
    from shardex.media.image_files import MAX_PIXELS as MAX_PIXELS
    from shardex.media.image_files import ImageInfo, image_info
    from shardex.media.image_files import is_whole_jpeg as is_whole_jpeg
    from shardex.media.image_steps import CenterCrop, Flip, ImageStep, Pad, RandomCrop, RandomResizedCrop, Resize
    from shardex.media.image_steps import check_steps as check_steps
    from shardex.media.image_steps import size_after as size_after
    from shardex.media.images import decode_image, encode_image
    from shardex.media.images import image_palette as image_palette
    from shardex.media.video import VideoInfo, decode_frames, encode_video, video_info
else:

    def _hint(name: str) -> NoReturn:
        raise missing_name(__name__, name, MEDIA, __all__)

    import_later(
        __name__,
        {
            "audio": "AudioInfo audio_info decode_audio encode_audio",
            "clip_batches": "decode_audios decode_videos",
            "decode_threads": "decode_threads",
            "image_batches": "decode_images",
            "image_files": "MAX_PIXELS ImageInfo image_info is_whole_jpeg",
            "image_steps": "CenterCrop Flip ImageStep Pad RandomCrop RandomResizedCrop Resize check_steps size_after",
            "images": "decode_image encode_image image_palette",
            "video": "VideoInfo decode_frames encode_video video_info",
        },
        _hint,
    )
