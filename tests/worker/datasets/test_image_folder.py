"""Image folders: layouts, preprocessing, broken files."""

import pytest
from PIL import Image

from perfdash.records import Case, Job
from tests.lazy import lazy

torch = lazy("torch")
images = lazy("perfdash.worker.datasets.images")


def job(path, loader="torchvision", target="resnet18", **settings):
    case = Case("techniques", target)
    return Job(
        case=case, loader=loader, target=target, scratch="", data="images", data_path=str(path), **settings
    )


def paint(file, colour=(255, 0, 0), size=(40, 30)):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(file)


@pytest.fixture
def folder(tmp_path):
    """Two classes and one without images; three images and a file that is none."""
    paint(tmp_path / "val" / "n02" / "b.JPEG")
    paint(tmp_path / "val" / "n02" / "a.png", (0, 255, 0))
    paint(tmp_path / "val" / "n01" / "c.jpg", (0, 0, 255), (300, 500))
    (tmp_path / "val" / "n03").mkdir()
    (tmp_path / "val" / ".hidden").mkdir()
    (tmp_path / "val" / "n01" / "notes.txt").write_text("none")
    paint(tmp_path / "train" / "n01" / "d.jpg")
    return tmp_path


def read(data, size=2):
    batches = list(data.batches(size))
    return [x for (x,), _ in batches], torch.cat([labels for _, labels in batches])


def test_labels_are_places_of_sorted_folders(folder):
    data = images.open_data(job(folder))
    assert (data.samples, data.classes) == (3, 3)
    batches, labels = read(data)
    assert [batch.shape for batch in batches] == [(2, 3, 224, 224), (1, 3, 224, 224)]
    assert labels.tolist() == [0, 1, 1]
    mean, stdev = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    green = (torch.tensor([0.0, 1.0, 0.0]) - mean) / stdev  # the png, the first of its class by name
    torch.testing.assert_close(batches[0][1], green[:, None, None].expand(3, 224, 224))
    assert data.notes == []


def test_preprocessing_is_torchvisions(folder):
    """But for antialiasing: it resizes the tensor, here it is the image."""
    from torchvision.transforms._presets import ImageClassification
    from torchvision.transforms.functional import pil_to_tensor

    noise = torch.randint(256, (300, 400, 3), dtype=torch.uint8).numpy()
    file = folder / "val" / "n01" / "a.png"
    Image.fromarray(noise).resize((800, 600)).save(file)
    (batch, *_), _ = read(images.open_data(job(folder)), 1)
    theirs = ImageClassification(crop_size=224)
    assert torch.equal(batch[0], theirs(Image.open(file)))
    torch.testing.assert_close(batch[0], theirs(pil_to_tensor(Image.open(file))), atol=0.1, rtol=0.1)


@pytest.mark.parametrize("where", ["test", ""])
def test_other_layouts(tmp_path, where):
    paint(tmp_path / where / "cat" / "a.jpeg")
    paint(tmp_path / where / "dog" / "a.jpeg")
    data = images.open_data(job(tmp_path))
    assert (data.samples, data.classes) == (2, 2)
    assert read(data)[1].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({"inputs": {"size": [3, 64, 96]}}, (64, 96)),
        ({"loader": "timm", "target": "inception_v3"}, (299, 299)),
        ({"loader": "timm", "target": "resnet18", "inputs": {"size": [3, 32, 32]}}, (32, 32)),
    ],
)
def test_the_size_is_the_models(folder, settings, size):
    batches, _ = read(images.open_data(job(folder, **settings)))
    assert batches[0].shape[2:] == size


def test_statistics_of_a_timm_model(folder):
    batches, _ = read(images.open_data(job(folder, loader="timm", target="vit_base_patch16_224")))
    assert set(batches[0].unique().tolist()) <= {-1.0, 1.0} | set(batches[0][0].unique().tolist())
    assert batches[0][1].amin((1, 2)).tolist() == [-1, 1, -1]


def test_grey_images_and_those_with_a_palette(tmp_path):
    (tmp_path / "a").mkdir()
    Image.new("L", (30, 30), 255).save(tmp_path / "a" / "1.png")
    Image.new("P", (30, 30)).save(tmp_path / "a" / "2.png")
    Image.new("RGBA", (30, 30)).save(tmp_path / "a" / "3.png")
    assert read(images.open_data(job(tmp_path)))[1].tolist() == [0, 0, 0]


def test_unreadable_files_are_left_out_and_noted(folder):
    bad = folder / "val" / "n01" / "a.jpg"
    bad.write_bytes(b"no image")
    whole = (folder / "val" / "n02" / "b.JPEG").read_bytes()
    (folder / "val" / "n02" / "z.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "val" / "n02" / "y.png").mkdir()
    data = images.open_data(job(folder))
    for _ in range(2):  # the note stands once, however often they are read
        assert read(data)[1].tolist() == [0, 1, 1]
        (note,) = data.notes
        assert note.startswith(f"3 of 6 images cannot be read and are left out; the first is {bad} (Unident")


def test_none_can_be_read(tmp_path):
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.jpeg").write_bytes(b"")
    with pytest.raises(ValueError, match=r"none of the 3 images can be read; the first is .*a/x.jpeg"):
        read(images.open_data(job(tmp_path)))


def test_one_batch_is_held_at_a_time(folder):
    seen = []
    for (batch,), _ in images.open_data(job(folder, inputs={"size": [3, 32, 32]})).batches(1):
        seen.append(batch.untyped_storage().nbytes())
    assert seen == [3 * 32 * 32 * 4] * 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "is no folder"),
        (lambda path: path.write_text("a file"), "is no folder"),
        (lambda path: path.mkdir(), "has no images; they are looked for as"),
        (lambda path: paint(path / "a.jpeg"), "has no images"),
        (lambda path: (path / "val").mkdir(parents=True), "val has no images"),
    ],
)
def test_folders_that_are_none(tmp_path, make, message):
    make(tmp_path / "data")
    with pytest.raises(ValueError, match=message):
        images.open_data(job(tmp_path / "data"))


def test_no_path_and_a_model_of_other_channels(folder):
    with pytest.raises(ValueError, match="need a folder"):
        images.open_data(job(""))
    with pytest.raises(ValueError, match="the model takes 1"):
        read(images.open_data(job(folder, inputs={"size": [1, 8, 8]})))
