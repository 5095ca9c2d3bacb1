"""Texts with labels: the file, the tokenizer, and what is wrong with them."""

import pytest

from perfdash.records import Case, Job
from tests.lazy import lazy

tokenizers = lazy("tokenizers")
torch = lazy("torch")
transformers = lazy("transformers")
text = lazy("perfdash.worker.datasets.text")


VOCABULARY = {"[PAD]": 0, "[UNK]": 1, "good": 2, "bad": 3, "film": 4, "[END]": 5}


def job(path, **inputs):
    case = Case("techniques", "BERT")
    inputs = {"sequence": 4, **inputs}
    return Job(
        case=case,
        loader="transformers",
        target="BertForSequenceClassification",
        scratch="",
        inputs=inputs,
        data="text",
        data_path=str(path),
    )


def make_tokenizer(folder, **special):
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="[UNK]", **special
    ).save_pretrained(folder)


@pytest.fixture
def folder(tmp_path):
    make_tokenizer(tmp_path / "tokenizer", pad_token="[PAD]")
    return tmp_path


def write(folder, content, name="data.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(data, size=2):
    batches = list(data.batches(size))
    return [inputs for inputs, _ in batches], torch.cat([labels for _, labels in batches]).tolist()


REVIEWS = 'id,text,label\n1,good film,1\n2,"bad, bad\nfilm good good",0\n3,unheard,1\n'


def test_padded_and_cut_to_the_models_length(folder):
    write(folder, REVIEWS)
    data = text.open_data(job(folder))
    assert (data.samples, data.classes) == (3, None)
    (first, second), labels = read(data)
    assert first["input_ids"].tolist() == [[2, 4, 0, 0], [3, 1, 3, 4]]
    assert second["input_ids"].tolist() == [[1, 0, 0, 0]]
    assert labels == [1, 0, 1]
    # Labels would reach the loss, which breaks at one that the model has no class for.
    assert first["labels"].tolist() == [0, 0]
    assert sorted(first) == ["input_ids", "labels"]
    assert data.notes[0] == "1 of 3 texts are longer than 4 tokens: their ends are not read"
    assert "no attention mask" in data.notes[1]


def test_the_mask_and_no_labels(folder):
    write(folder, REVIEWS)
    data = text.open_data(job(folder, attention_mask=True, labels=False))
    (first, _), _ = read(data)
    assert sorted(first) == ["attention_mask", "input_ids"]
    assert first["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert [note for note in data.notes if "longer than" not in note] == []


def test_names_as_labels_and_the_file_itself_as_the_path(folder):
    path = write(folder, "label,text\nneg,bad\npos,good\nneg,film\n", "reviews.csv")
    data = text.open_data(job(path, attention_mask=True))
    assert data.classes == 2
    assert data.notes == ["labels are the places of the sorted names: neg, pos"]
    assert read(data)[1] == [0, 1, 0]


def test_a_byte_order_mark(folder):
    write(folder, b"\xef\xbb\xbftext,label\r\ngood,1\r\n")
    assert read(text.open_data(job(folder)))[1] == [1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "data.csv is empty"),
        ("text,label\n", "no row after its first line"),
        ("text,class\ngood,1\n", "line 1: no column 'label'; there are: text, class"),
        ("text,label\ngood,1\nbad,no\n", "line 3: the label 'no' is no integer, but others are"),
        ("text,label\ngood,1\nbad,1.5\n", "line 3: the label '1.5' is no integer"),
        ("text,label\ngood,1\nbad\n", "line 3: the label is missing"),
        ("text,label\ngood,\n", "line 2: the label is missing"),
        ("label,text\n1,good\n1\n", "line 3: the text is missing"),
        ("text,label\nbad, bad film,1\n", "line 2: more fields than columns"),
        (b"text,label\ngood,1\nb\xe4d,0\n", r"line 3: not UTF-8 \(byte 0xe4\)"),
        ("text,label\n" + "x" * 200_000 + ",1\n", "line 2: field larger than field limit"),
    ],
)
def test_what_is_wrong_with_a_file(folder, content, message):
    write(folder, content)
    with pytest.raises(ValueError, match=f"data.csv.*{message}|{message}"):
        text.open_data(job(folder))


def test_what_is_missing(tmp_path):
    with pytest.raises(ValueError, match="need a CSV file"):
        text.open_data(job(""))
    with pytest.raises(ValueError, match=r"data.csv is missing"):
        text.open_data(job(tmp_path))
    write(tmp_path, REVIEWS)
    with pytest.raises(ValueError, match=r"tokenizer is missing: put the model's tokenizer there"):
        text.open_data(job(tmp_path))


@pytest.mark.parametrize("content", [{}, {"tokenizer.json": "{"}, {"tokenizer_config.json": "[]"}])
def test_a_folder_that_is_no_tokenizer(tmp_path, content):
    write(tmp_path, REVIEWS)
    (tmp_path / "tokenizer").mkdir()
    for name, broken in content.items():
        (tmp_path / "tokenizer" / name).write_text(broken)
    with pytest.raises(ValueError, match=r"tokenizer holds no tokenizer that transformers can read"):
        text.open_data(job(tmp_path))


def test_padding_without_a_padding_token(tmp_path):
    write(tmp_path, REVIEWS)
    make_tokenizer(tmp_path / "tokenizer", eos_token="[END]")
    data = text.open_data(job(tmp_path, attention_mask=True))
    assert "padded with its end token" in data.notes[0]
    assert read(data)[0][0]["input_ids"][0].tolist() == [2, 4, 5, 5]
    make_tokenizer(tmp_path / "tokenizer")
    with pytest.raises(ValueError, match="no padding token, and no end token"):
        text.open_data(job(tmp_path))


def test_a_transformer_is_scored(folder):
    from transformers import BertConfig, BertForSequenceClassification

    from perfdash.worker import quality

    write(folder, "text,label\n" + "good film,1\nbad film,0\n" * 5)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = BertForSequenceClassification(BertConfig(vocab_size=6, max_position_embeddings=8, **sizes)).eval()

    def run(inputs):
        return model(**inputs)

    data = text.open_data(job(folder))
    scores = quality.score(run, run, data, 4)
    assert (scores["samples"], scores["classes"], scores["agreement"]) == (10, 2, 1)
    write(folder, "text,label\ngood,1\nbad,7\n")
    with pytest.raises(ValueError, match="label 7 is none of the model's 2 classes"):
        quality.score(run, run, text.open_data(job(folder)), 4)
