"""The data that these tests sort, and its output without a disturbance."""

import pytest

from tests.sort.chaos.cluster import Data, Undisturbed, make_data


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return make_data(tmp_path_factory.mktemp("chaos"))


@pytest.fixture(scope="session")
def undisturbed(data: Data) -> Undisturbed:
    return Undisturbed(data)
